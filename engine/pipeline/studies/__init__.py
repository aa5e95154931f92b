"""Many runs under one question: sweeps and experiments."""
