"""What a run looks like: tables for the console, figures, and one HTML page, from the files of a run folder.

``folder``    a run folder, read
``rows``      a comparison in numbers
``papers``    its tables for papers: Markdown, LaTeX, CSV
``tables``    comparison, final figures, clients; as rich table, Markdown, text and HTML
``charts``    what all charts have in common, colours of the page, and how a chart becomes SVG or PNG
``figures``   a chart with its words; colours of methods, axes, thinning
``accuracy``  accuracy over rounds and at the end
``spreads``   accuracy and gain of all clients
``costs``     kinds of classes, bytes, seconds
``weights``   who learned from whom, as weights
``clusters``  the same, as clusters
``naming``    what clients and classes are called on axes, and their order there
``people``    single clients: rows of the table, what opening one shows, labels
``parts``     the clients and relations of every run, and their mean over seeds, packed for the page's script
``island``    all of these for a run or a comparison, and the warnings
``markup``    the HTML of a page
``page``      the page of a run or a comparison, with the scripts and the style in ``assets``
``export``    every figure as SVG, every table as CSV

Nothing is imported here: a run without a report should not wait for the library that draws.
"""
