"""Networks of other libraries, built small, and a check of their symmetries that shares no code with ``verify``."""
