// Run the search's worker in a hidden frame where the pages are files: browsers start no worker from
// a file. The frame has the same two ends as a worker: messages in, messages out.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.addEventListener("load", () => this.start(address), { once: true })
      document.documentElement.appendChild(this.frame)
    }

    start(address) {
      const inside = this.frame.contentWindow
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.importScripts = (...addresses) => Promise.all(addresses.map((each) => this.load(each)))
      this.load(address).then(() => {
        this.deliver = (data) => inside.dispatchEvent(new MessageEvent("message", { data }))
        this.waiting.forEach(this.deliver)
      })
    }

    load(address) {
      return new Promise((done, failed) => {
        const script = this.frame.contentDocument.createElement("script")
        Object.assign(script, { src: new URL(address, document.baseURI), onload: done, onerror: failed })
        this.frame.contentDocument.body.appendChild(script)
      })
    }

    postMessage(data) {
      if (this.deliver) this.deliver(data)
      else this.waiting.push(data)
    }

    terminate() {
      this.frame.remove()
    }
  }
}
