"""City streets with the usual appearance of each class, with weather, night and a camera model."""
