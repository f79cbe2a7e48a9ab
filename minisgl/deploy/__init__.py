"""Several servers behind one address: who answers what, on Ray Serve."""
