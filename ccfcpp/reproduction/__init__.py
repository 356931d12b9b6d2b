"""The papers' tables and figures, each by one name: its runs, its picture, and what held in them."""
