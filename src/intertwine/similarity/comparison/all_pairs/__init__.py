"""All pairs of layers of two networks by every measure: many at once where products allow it, else one by one."""
