"""Pictures without a browser: what a model looks at, and how it learned, as PNG, SVG or PDF.

    from regard.inspection.pictures import alignment_picture, save

    save(alignment_picture(weights, target_words, source_words), "alignment.pdf")

Every `..._picture` takes plain numbers and words, or a trace, and gives a figure of matplotlib, the extra `plot`;
`..._svg` makes a small map without it. All are honest in one way: a scale is always there, nothing is normalised, and
what is thinned, averaged, negative or not finite is said with the picture.
"""

from regard.inspection.pictures.canvas import picture_format, render_figure, save
from regard.inspection.pictures.curves import flow_picture, training_picture
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

__all__ = [
           "alignment_picture",
           "attention_picture",
           "entropy_picture",
           "flow_picture",
           "heads_picture",
           "heads_svg",
           "heat_svg",
           "patch_picture",
           "picture_format",
           "position_picture",
           "render_figure",
           "save",
           "trace_picture",
           "trace_svg",
           "trace_views",
           "training_picture",
]
