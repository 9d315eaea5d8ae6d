"""The auditing side: challenge, replay, verdicts, fraud proofs and reports."""
