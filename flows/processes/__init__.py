"""Who starts and ends which process: the front, the watcher, Prefect's private server, the records of a run that died."""
