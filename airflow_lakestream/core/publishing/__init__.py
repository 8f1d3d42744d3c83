"""Publication: what another engine wrote to a branch of a table goes on main, together with the ledger."""
