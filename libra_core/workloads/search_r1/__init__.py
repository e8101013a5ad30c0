"""Search-R1 on facts of countries: the policy searches a corpus, reads passages and answers in tags."""
