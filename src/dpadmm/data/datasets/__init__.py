"""Named data sets: UCI Adult, public tables, and synthetic rows."""
