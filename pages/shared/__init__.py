"""Parts that every page uses: the frame, the store, jobs, waiting."""
