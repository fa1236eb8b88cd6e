"""Reports of runs: tables for the console, figures, and one HTML page, from the record of a run.

What is known:

``headline``    the headline metric, the averaged rounds, runs that diverged, the kinds of training alone
``standings``   a comparison in numbers; a method against a reference, client by client
``client_table`` single clients: rows of the table, their details, labels
``client_data`` the clients and relations of every run, and their mean over seeds, packed for the page's script
``weights``     relations between clients as weights; ``clusters`` as clusters
``relations``   who learned from whom in a run, as charts and sentences; clients on a circle with links
``content``     all of these for a run or a comparison, and the caveats

Charts:

``palette``     colours and shapes: tokens for light and dark, a slot for each method
``charts``      charts from the files in ``specs``, and drawing of a chart as SVG or PNG
``drawing``     the library that draws, in a process of its own
``figures``     a chart with its title and caption; colours of methods, axes, names and order of clients
``dots``        each client's gain, a row for each method
``curves``      accuracy over rounds and at the end, and the traffic
``costs``       all clients in order, groups of classes, bytes, seconds, notes on clients

The page:

``wording``     numbers, short phrases, and the templates of pages and sentences in ``templates``
``page``        the page of a run or a comparison, with the scripts, the style and fixed parts in ``assets``; charts
                as SVG and PDF files, tables as CSV files

Other files:

``tables``      comparison, final figures, clients; as rich table, Markdown and HTML; the console
``publication_tables`` tables for publications: Markdown, LaTeX, CSV
``tuning``      how the methods of a comparison were tuned: its file, table and caveats

Nothing is imported here: a run without a report need not wait for the library that draws.
"""
