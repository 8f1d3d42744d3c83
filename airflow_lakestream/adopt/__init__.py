"""Tables that other tools filled: their rows get a ledger, and other tools go on where a ledger ends."""
