"""How the tables of a store came about, step by step, for alembic."""
