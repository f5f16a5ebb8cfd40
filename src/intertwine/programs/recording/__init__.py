"""Recording of runs: the dispatch recorder, the memory that it follows, and the front-ends that drive it."""
