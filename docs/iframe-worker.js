/* The search of the site runs in a worker, and browsers start no worker for a page that is opened from disk. There, and
   only there, a hidden frame runs the same script in place of one: it receives and posts messages as a worker does.
   The name of the file tells Zensical's plugin `offline` that it need not load such a script from a network. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];                      // messages until the script has been loaded
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => {        // what the script calls to answer
        const event = new MessageEvent("message", { data: structuredClone(data) });
        setTimeout(() => { this.onmessage?.(event); this.dispatchEvent(event); });
      };
      const script = inside.document.createElement("script");
      script.src = new URL(address, document.baseURI).href;
      script.onload = () => {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach((data) => this.postMessage(data));
      };
      script.onerror = () => this.onerror?.(new ErrorEvent("error", { message: `cannot load ${script.src}` }));
      inside.document.head.append(script);
    }

    postMessage(given) {
      const inside = this.frame.contentWindow, data = structuredClone(given);  // the script may change what it gets
      if (this.waiting) this.waiting.push(data);
      else if (inside) setTimeout(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
