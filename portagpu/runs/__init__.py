"""What a run is: its results, its judges, its ranks, and what several runs say together."""
