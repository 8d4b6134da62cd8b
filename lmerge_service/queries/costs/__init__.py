"""What plans cost, estimated from characteristics of their streams, before they run."""
