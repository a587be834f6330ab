"""What a study will cost and how well it will do, before any private row is read."""
