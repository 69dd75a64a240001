"""Images -> the same images, shifted: turned against a classifier, or in another image's style."""
