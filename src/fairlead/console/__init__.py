"""The console at /console of the web page: for people who operate Fairlead, and for a developer's first look.

The server renders the pages; `static/console.js` only adds comfort. All state of a page is in its address, and the same
address with `.json` behind the path gives its data. The package is loaded with the first page, except `backend`,
`series` and `sampler`, which a server needs at its start.

Add a view
----------
1. Write `views/<topic>.py`: a `Parameters` struct for the address (every field with a default), a `msgspec.Struct` for
   the data, `async def load(context, asked)` that returns it, and `VIEW = View(path=..., title=..., ...)`. The path is
   fixed text; names and ids are parameters. `nav` and `key` put it into the navigation and give it a shortcut;
   `access` leaves it out there for viewers who may not call this method.
2. Write `templates/<topic>.html`: it extends `base.html`, and has `data` and `page`. Links are `page.url(path, id=...)`
   and `page.here(after=...)`. Shared parts are the macros of `macros.html`, as `ui.tile(...)`. There are filters for
   `number`, `size`, `duration`, `moment` (a time) and `plural`. Style attributes and inline scripts don't work: the
   content security policy forbids them. Tables have a caption and `scope`, and stand in `<div class="scroll">`.
3. Add `<topic>.VIEW` to the table `VIEWS` in `views/__init__.py`. At most a few hundred rows per page: link to the next
   with `ui.pager`.

Read only through `Context`: `call` for Temporal's API, `operators` and `ask_host` for the methods of `fairlead admin`,
`require` before figures from memory (`queues.waiting_queues`, `context.points`). All of them use the viewer's rights. A
part that the viewer may not see, or that fails, becomes a `Problem` in the data (`problem_of`), shown by `ui.problem`;
an error that reaches the console becomes the error page.

Add an action
-------------
Add `Action(name=..., label=..., access=workflow_method("..."), fields=(Field(...),), act=...)` to the view's `actions`.
`act(context, parameters, form)` carries it out with `context`, whose calls take the reason to the audit, and returns a
sentence for the next page. The template shows the button with `ui.action(page, "name", {"fixed": value})`; it is absent
for viewers who may not call `access`, and the POST is refused for them. Give a destructive one a `word` to type.

Add a live part
---------------
The template's block `live` is rendered again every two seconds while somebody looks at it, once for all viewers of the
same address and rights, and sent if it changed. Its direct children are sections with an `id`; only those that changed
are replaced. Write times with the filter `moment`, never as an age: the page's script shows the age. Put forms into the
blocks `above` or `below`.

Add a time series
-----------------
Record it in `sampler.Sampler.sample` under a new name, from figures that are in memory already; read it with
`context.points(name, span_s=...)`, and draw it with `curve(points, label)` or `spark(points, label)` in the template.
Series are of one host: this one.

Add a browser test
------------------
Write `tests/console/test_<topic>.py` with the fixture `seen` of `tests/console/conftest.py`: `seen.goto(path)` opens a
page of a server with workflows, `seen.shoot(name)` checks that the page fits a desktop and a phone, and the test fails
if the browser reports an error. With `FAIRLEAD_TEST_PICTURES=FOLDER`, `shoot` also takes pictures.
`tests/console/web.py` has servers without a browser, with and without authorization.
"""
