"""What is kept and shown of runs: HTML, JUnit, bundles, history, fleets, proofs of targets."""
