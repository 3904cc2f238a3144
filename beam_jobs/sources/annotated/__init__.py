"""Pictures with annotations: `AnnotatedImages` joins the files of a folder with what annotation files say of them."""
