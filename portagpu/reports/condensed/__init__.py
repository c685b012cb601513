"""What a fleet's report keeps of a result: read from files, or from what a store holds of it."""
