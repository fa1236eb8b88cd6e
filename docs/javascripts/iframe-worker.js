// Browsers give pages that are opened as files no workers, and the search of the site runs in one: here it gets a hidden
// frame instead. Named as the package that the theme would otherwise fetch from a server for this.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const here = new URL(url, document.baseURI);
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = (this.inner = frame.contentWindow);
      const load = (path) =>
        new Promise((done, failed) => {
          const script = inner.document.createElement("script");
          script.src = new URL(path, here).href;
          script.onload = done;
          script.onerror = failed;
          inner.document.body.append(script);
        });
      const reply = (message) => {
        this.dispatchEvent(message);
        this.onmessage?.(message);
      };
      // as with a worker, data are copied, and a reply does not arrive while the page handles the key that asked for it
      inner.postMessage = (data) => setTimeout(reply, 0, new MessageEvent("message", { data: structuredClone(data) }));
      inner.importScripts = (...paths) => paths.reduce((before, path) => before.then(() => load(path)), Promise.resolve());
      this.ready = load(here);
      this.frame = frame;
    }
    postMessage(data) {
      const copy = structuredClone(data);
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data: copy })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
