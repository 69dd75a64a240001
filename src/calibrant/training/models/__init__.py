"""A name and the shape of the inputs -> a network with features and a head."""
