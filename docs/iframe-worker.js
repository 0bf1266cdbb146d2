// Search in pages that are opened as files: browsers start no worker there, so its script runs in a frame.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.inside = new Promise((ready) => {
        frame.onload = () => {
          const inside = frame.contentWindow;
          const script = inside.document.createElement("script");
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          script.onload = () => ready(inside);
          script.src = url;
          inside.document.head.appendChild(script);
        };
      });
      document.documentElement.appendChild(frame);
    }
    postMessage(data) {
      this.inside.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
