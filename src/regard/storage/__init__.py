"""Storage: the model folder, weights, and the formats of Hugging Face, CTranslate2 and ONNX."""
