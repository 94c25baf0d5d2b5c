"""What only the SQLite store has: its file, its threads, its errors."""
