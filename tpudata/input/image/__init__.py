"""Pictures cropped, augmented, mixed and normalised."""
