"""Pictures without a browser: what a model looks at, and how it learned, as PNG, SVG or PDF.

    from regard.inspection.pictures import alignment_picture, save

    save(alignment_picture(weights, target_words, source_words), "alignment.pdf")

Every `..._picture` takes plain numbers and words, or a trace, and gives a figure of matplotlib, the extra `plot`;
`..._svg` makes a small map without it. All are honest in one way: a scale is always there, nothing is normalised, and
what is thinned, averaged, negative or not finite is said with the picture.
"""

from regard.inspection.pictures.curves import flow_picture, training_picture
from regard.inspection.pictures.heads import entropy_picture, heads_picture
from regard.inspection.pictures.maps import alignment_picture
from regard.inspection.pictures.patches import patch_picture
from regard.inspection.pictures.positions import position_picture
from regard.inspection.pictures.saving import format_of, rendered, save
from regard.inspection.pictures.svg import heads_svg, heat_svg
from regard.inspection.pictures.traces import attention_picture, trace_picture, trace_svg, views

__all__ = ["alignment_picture", "attention_picture", "entropy_picture", "flow_picture", "format_of", "heads_picture",
           "heads_svg", "heat_svg", "patch_picture", "position_picture", "rendered", "save", "trace_picture",
           "trace_svg", "training_picture", "views"]
