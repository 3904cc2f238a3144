"""Pictures cropped, augmented, mixed and normalized."""
