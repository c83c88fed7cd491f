"""The verbs of webdataset and of Hugging Face datasets."""
