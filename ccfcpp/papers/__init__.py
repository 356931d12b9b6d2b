"""The papers beside this library: tables, theorems, reproduction."""
