"""Recording of runs: the dispatch recorder, and the memory that it follows."""
