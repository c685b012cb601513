"""Random programs of gradient scaling."""
