"""Distribution shifts of images: adversarial attacks and style transfer."""
