"""The embedded policy: its tokenizer, its supervised start and the cache of both."""
