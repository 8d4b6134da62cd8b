"""What people and guards decide about a merge: the control log, its ledger, and carrying it out."""
