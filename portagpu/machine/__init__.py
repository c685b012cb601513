"""All facts joined to one machine: its devices, its links, and where ranks belong."""
