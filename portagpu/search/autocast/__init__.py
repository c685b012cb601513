"""Random programs of autocast."""
