// PyArrow's client of Azure asks with "Expect: 100-continue" also where it has nothing to send. Where the word to go on and
// the answer come together, it takes one for a part of the other: it waits for half a minute, or ends its process. So
// nobody is told to go on here who has nothing to send.
const http = require("node:http");
const { listen } = http.Server.prototype;

http.Server.prototype.listen = function (...where) {
  this.on("checkContinue", (request, response) => {
    if (request.headers["content-length"] !== "0") {
      response.writeContinue();
    }
    this.emit("request", request, response);
  });
  return listen.apply(this, where);
};
