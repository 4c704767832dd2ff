"""Building an index: reads source, never runs it. Needs the extra `explain` (libcst)."""
