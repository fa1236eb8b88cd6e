"""Reports of runs: tables for the console, figures, and one HTML page, from the record of a run.

What is known:

``headline``    the headline metric, the averaged rounds, runs that diverged
``standings``   a comparison in numbers; a method against a reference, client by client
``client_table`` single clients: rows of the table, their details, labels
``client_data`` the clients and relations of every run, and their mean over seeds, packed for the page's script
``weights``     relations between clients as weights; ``clusters`` as clusters
``relations``   who learned from whom in a run, as charts and sentences
``content``     all of these for a run or a comparison, and the caveats

Charts:

``palette``     colours and shapes: tokens for light and dark, a slot for each method
``charts``      charts from the files in ``specs``, and drawing of a chart as SVG or PNG
``drawing``     the library that draws, in a process of its own
``figures``     a chart with its title and caption; colours of methods, axes, names and order of clients
``dots``        each client's gain, a row for each method
``curves``      accuracy over rounds and at the end, and the traffic
``costs``       all clients in order, groups of classes, bytes, seconds, notes on clients
``circle``      clients on a circle with links

The page:

``references``  the difference between the two kinds of training alone
``wording``     numbers and short phrases
``templates``   the templates of pages and sentences in ``templates``
``page``        the page of a run or a comparison, with the scripts, the style and fixed parts in ``assets``

Other files:

``console``     the console of everything that is printed
``tables``      comparison, final figures, clients; as rich table, Markdown, text and HTML
``publication_tables`` tables for publications: Markdown, LaTeX, CSV
``export``      every figure as SVG, every table as CSV
``tuning``      how the methods of a comparison were tuned: its file, table and caveats

Nothing is imported here: a run without a report need not wait for the library that draws.
"""
