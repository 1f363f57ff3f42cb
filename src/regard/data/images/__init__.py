"""Images as people have them: folders of a class each, and IDX files; read as bytes, scaled as models read them."""
