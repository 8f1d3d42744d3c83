"""Publication of another engine's branch on main, together with the ledger."""
