"""Pictures without a browser: attention maps and training curves as PNG, SVG or PDF.

    from regard.inspection.pictures import alignment_picture, save

    save(alignment_picture(weights, target_words, source_words), "alignment.pdf")

Every `..._picture` takes plain numbers and words, or a trace, and returns a matplotlib figure (the extra `plot`);
`..._svg` makes a small map without matplotlib. Every picture has a scale, nothing is normalised, and a note says what
is thinned, averaged, negative or not finite.
"""

from regard.inspection.pictures.canvas import picture_format, render_figure, save
from regard.inspection.pictures.curves import flow_picture, length_picture, training_picture
from regard.inspection.pictures.maps import (
    alignment_picture,
    attention_picture,
    entropy_picture,
    heads_picture,
    position_picture,
    trace_picture,
    trace_svg,
    trace_views,
)
from regard.inspection.pictures.patches import patch_picture
from regard.inspection.pictures.svg import heads_svg, heat_svg

__all__ = ["alignment_picture", "attention_picture", "entropy_picture", "flow_picture", "heads_picture", "heads_svg",
           "heat_svg", "length_picture", "patch_picture", "picture_format", "position_picture", "render_figure", "save",
           "trace_picture", "trace_svg", "trace_views", "training_picture"]
