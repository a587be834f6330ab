"""Results of runs -> folders, tables and figures. Nothing here trains or recomputes."""
