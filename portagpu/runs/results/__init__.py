"""What a run says: its results and verdict, what was expected, and both in words."""
